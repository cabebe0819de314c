"""The page of a run: one HTML file (`adcs report`), or live while it runs (`adcs watch`)."""
