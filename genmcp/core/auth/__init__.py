"""OAuth as pure rules: challenges, metadata, claims, and the flows of a client."""
