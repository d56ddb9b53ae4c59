from genmcp.resources.resource import ResourceRepo as ResourceRepo
