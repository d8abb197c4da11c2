/* Marks the symbols that the shared libraries export; all other symbols are hidden. For C and C++. */
#ifndef POLLCORE_EXPORT_H
#define POLLCORE_EXPORT_H

#define POLLCORE_API __attribute__((visibility("default")))
/* For members of exported classes that only the libraries themselves call. */
#define POLLCORE_INTERNAL __attribute__((visibility("hidden")))

#endif
