"""The recurrences in plain tensor code: chunked or scanned, on any device."""
