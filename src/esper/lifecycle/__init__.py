"""The rules of growth as data: stages, actions, which heads matter, what is legal."""
