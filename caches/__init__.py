"""What is stored: targets, records, Inductor's files and bundles."""
