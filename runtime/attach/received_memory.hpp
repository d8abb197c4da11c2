// Memory of an attached process that the daemon has mapped: a memory region's, or a session's rings.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <utility>

#include "attach/account.hpp"
#include "base/disposal.hpp"
#include "base/host_memory.hpp"

namespace pollcore {

struct ReceivedMemory {
    Account::Held bytes;  // ends last
    HostMemory mapping;
};

/// Whoever drops the last of these does not wait until it is unmapped; until then it counts as Thing::leaving_byte.
[[nodiscard]] inline std::shared_ptr<ReceivedMemory> make_received_memory(Account::Held bytes, HostMemory mapping) {
    const auto owner = std::make_shared<std::unique_ptr<ReceivedMemory>>(
        std::make_unique<ReceivedMemory>(ReceivedMemory{std::move(bytes), std::move(mapping)}));
    return {owner->get(), [end = std::function<void()>([owner] { owner->reset(); })](ReceivedMemory* memory) mutable {
                Account::Held leaving = memory->bytes.account().take(Thing::leaving_byte, memory->bytes.amount());
                memory->bytes = std::exchange(leaving, {});
                dispose(kMemoryDisposal, std::move(end));  // which was made before: here no memory may be needed
            }};
}

/// What came with a message.
struct Handed {
    std::shared_ptr<ReceivedMemory> memory;  ///< nothing: no descriptor came, or
    std::exception_ptr failure;              ///< it could not be had
};

}  // namespace pollcore
