// Home: the list, and the form that starts a dialog.
