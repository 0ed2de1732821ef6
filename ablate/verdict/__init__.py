"""The statistical verdict on the arms of a sweep: intervals, comparisons, statements."""
