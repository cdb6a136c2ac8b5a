"""`flytune report`: one HTML file of charts and tables about one or more bundles."""
