# For doxygen: the comment at the top of a header is the file's own. Lines of the header are moved by one.
1s#^// #/// @file\n/// #
1s#^/[*] #/** @file\n * #
2,/^[^/]/s#^//\( \|$\)#///\1#
