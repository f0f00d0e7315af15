"""The batch API: batch records, input and output files, and the runner."""
