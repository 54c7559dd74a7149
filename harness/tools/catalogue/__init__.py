"""The known failures beside the runs that were recorded of them: which are alive,
where."""
