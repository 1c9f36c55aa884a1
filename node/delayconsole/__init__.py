"""The console: a cluster in a browser. Pages are rendered here; the browser runs htmx and uPlot, and little of ours."""
