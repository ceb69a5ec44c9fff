"""The formats of logs, each recognized by content and read into rows of our own format."""
