"""Tokens that are bound to a key (DPoP, RFC 9449), at a server: `Bearer(..., verify=Dpop())`.

Few need it, and no other module of a server imports this folder. The client's half is
`genmcp.client.auth.dpop`.
"""
