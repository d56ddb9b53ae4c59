"""Several servers behind one: shared by the hub (clients) and the registry (muxes)."""
