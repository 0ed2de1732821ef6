"""Bundles: results in a form that anybody can read, check and run again, run by run."""
