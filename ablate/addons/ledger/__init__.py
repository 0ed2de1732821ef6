"""The ledger: results in a form that anybody can read, check and run again, cell by cell."""
