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
    std::vector<UniqueFd> descriptors;  ///< sent along with the message

    /// False: an event, which nobody asked for.
    [[nodiscard]] bool is_answer() const noexcept {
        wire::Header header;
        std::memcpy(&header, bytes.data(), sizeof(header));
        return header.id != 0;
    }
};

/// A list of one Reply. Handing it on allocates nothing, so an answer whose node is there before the request is carried
/// out cannot be lost (D29).
using ReplyNode = std::list<Reply>;

}  // namespace pollcore
