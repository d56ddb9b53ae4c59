"""Authorization that few need: tokens bound to a key (DPoP), workload identity, single sign-on.

Nothing else in genmcp imports this folder but `genmcp login --dpop`. A server with `Dpop` and a
client with `DpopAuth`, `Workload` or `Enterprise` pass them to the rest, as they would pass
something of their own:

    ==========================================  ==================================================
    `genmcp.auth.extensions.dpop`               `Bearer(..., verify=Dpop())`
    `genmcp.auth.extensions.dpop_client`        `Client(url, auth=DpopAuth(OAuth("Parts agent")))`
    `genmcp.auth.extensions.identities`         `Client(url, auth=Workload(...))`
    `genmcp.auth.extensions.identities`         `Client(url, auth=Enterprise(...))`
    ==========================================  ==================================================
"""
