"""The scaling ladder: the arms of a sweep at several sizes, and the fits over them."""
