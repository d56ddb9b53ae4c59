"""A browser for tests: it follows the redirects of a URL. $BROWSER names it."""

import sys
import urllib.request

if __name__ == "__main__":
    urllib.request.urlopen(sys.argv[1]).close()
