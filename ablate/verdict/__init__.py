"""What may be said of the arms of a sweep: intervals, comparisons, findings."""
