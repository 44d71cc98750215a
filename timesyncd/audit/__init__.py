"""A recorded job as a report: what synchronization cost it, who caused it, and what each remedy would gain."""
