// Marks the functions by which this library takes the place of libibverbs. All other symbols of the library are hidden.
#pragma once

#define POLLCORE_VERBS_EXPORT extern "C" __attribute__((visibility("default")))
