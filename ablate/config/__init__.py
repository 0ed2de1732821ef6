"""What every configuration rests on: base classes, registries, merging, messages, YAML, plugins.

It knows no model and no data.
"""
