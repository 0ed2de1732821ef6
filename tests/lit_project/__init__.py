"""A project of somebody else, with the constructors that public ones have."""
