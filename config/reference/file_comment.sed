# For doxygen: makes the comment at the top of a header the documentation of the file. This adds one line to the header.
1s#^// #/// @file\n/// #
1s#^/[*] #/** @file\n * #
2,/^[^/]/s#^//\( \|$\)#///\1#
