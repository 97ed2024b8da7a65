"""Home: the page on which dialogs are found, and started."""
