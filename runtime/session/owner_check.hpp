// SessionOptions::check_thread. In a header, so that where it is switched off the data path has one test of a word that it reads anyway.
#pragma once

#include "pollcore/session.hpp"

namespace pollcore {

inline void Session::check_thread() noexcept {
    if ((attention_ & kThreadChecked) != 0) [[unlikely]] {
        check_owner();
    }
}

}  // namespace pollcore
