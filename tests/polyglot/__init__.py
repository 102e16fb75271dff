"""Workers in other languages, made with the stubs that `make stubs` writes."""
