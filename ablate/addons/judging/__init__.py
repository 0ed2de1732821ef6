"""`ablate judge`: the verdict on results that are already there.

`files`, `stores` and `logs` read a source into `Rows`; `columns` finds out what its columns are, `runs` makes an
outcome of each run, and `judge` gives the outcomes to `ablate.verdict`. `looks_file` counts the looks at a table.
"""
