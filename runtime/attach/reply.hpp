// A message to an attached process.
#pragma once

#include <cstddef>
#include <cstring>
#include <list>
#include <vector>

#include "attach/wire.hpp"
#include "base/unique_fd.hpp"

namespace pollcore {

struct Reply {
    std::vector<std::byte> bytes;
    std::vector<UniqueFd> descriptors;  ///< sent along

    /// Else an event, which nobody asked for.
    [[nodiscard]] bool is_answer() const noexcept {
        wire::Header header;
        std::memcpy(&header, bytes.data(), sizeof(header));
        return header.id != 0;
    }
};

/// One of them, in a list: handing it on takes no memory, so an answer that has its node before the question is
/// answered is not lost.
using ReplyNode = std::list<Reply>;

}  // namespace pollcore
