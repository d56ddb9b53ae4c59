"""The files of the page that `_transports/console` serves to browsers."""
