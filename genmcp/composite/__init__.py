"""One server that combines several members: clients of a hub, or muxes of a registry."""
