// The exception that the calls of this library throw. The data path (Session) throws nothing.
#pragma once

#include <string>
#include <system_error>

#include "pollcore/export.h"

namespace pollcore {

/// Reports a call that failed. what() names the action, its object, the cause and, if there is one, the remedy. code()
/// is the cause as an errno value in std::generic_category, so `e.code() == std::errc::device_or_resource_busy` works.
class POLLCORE_API Error : public std::system_error {
public:
    Error(int errno_value, const std::string& what) : std::system_error(errno_value, std::generic_category(), what) {}
    Error(std::errc cause, const std::string& what) : Error(static_cast<int>(cause), what) {}
};

}  // namespace pollcore
