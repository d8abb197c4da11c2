# For doxygen: removes the marks by which tests find figures.
s/<!--[^>]*-->//g
