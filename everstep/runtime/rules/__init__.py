"""What each known exception type means for a job: one table a family of libraries, read by `classify`."""
