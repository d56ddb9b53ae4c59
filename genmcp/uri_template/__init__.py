"""URI templates, RFC 6570: what they stand for, and what a URI has in place of their variables."""
