"""What astitch asks of the process and its files: callbacks, forks, private files, kept libraries."""
