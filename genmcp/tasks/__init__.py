"""Background jobs and tasks: work that outlives its request."""

from genmcp.tasks.queues import ExternalStatus as ExternalStatus
