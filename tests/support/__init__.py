"""Parts that tests of several folders share: clients, servers, transports, clocks."""
