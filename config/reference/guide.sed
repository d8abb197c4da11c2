# For doxygen: without the marks by which tests find figures.
s/<!--[^>]*-->//g
