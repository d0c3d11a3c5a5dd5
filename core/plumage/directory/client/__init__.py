"""Access to the directory server: connections, pipelines, back-off and background tasks."""
