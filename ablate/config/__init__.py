"""The basis of all configurations: base classes, registries, merging, messages, YAML, plugins. It does not depend on
models or data.
"""
