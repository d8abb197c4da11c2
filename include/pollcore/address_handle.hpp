// Address handles for datagrams. An address handle describes the way to a port. A send names the UD queue pair at that
// port by its number.
//
// Thread safety: any thread may make any call, one at a time per object. handle() may also be called at any time.
#pragma once

#include <memory>

#include "pollcore/export.h"
#include "pollcore/handle.hpp"

namespace pollcore {

class ControlSide;

/// An address handle (ibv_create_ah(3)). All sessions may use it on UD queue pairs of its protection domain.
/// Context::create_address_handle makes address handles. Never call that function on a hot path: it may have to resolve
/// an address on the network (D40).
class POLLCORE_API AddressHandle {
public:
    AddressHandle() = default;
    /// Made by Context.
    POLLCORE_INTERNAL AddressHandle(std::shared_ptr<ControlSide> control, AhHandle handle) noexcept;
    ~AddressHandle();
    AddressHandle(AddressHandle&& other) noexcept;
    AddressHandle& operator=(AddressHandle&& other) noexcept;

    /// Goes into UdDestination. A send that names a destroyed handle completes with request_refused.
    [[nodiscard]] AhHandle handle() const noexcept { return handle_; }
    [[nodiscard]] bool valid() const noexcept { return control_ != nullptr; }

    /// Destroys the handle. Throws Error(EBUSY), and changes nothing, while submitted sends name the handle. The
    /// destructor does the same. If the handle is in use then, the runtime destroys it when the runtime stops.
    void destroy();

private:
    std::shared_ptr<ControlSide> control_;
    AhHandle handle_{};
};

}  // namespace pollcore
