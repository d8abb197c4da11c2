#include "flow/flow_kind.hpp"

namespace pollcore {

constinit const FlowKind flow_kinds::off{};

const FlowKind& flow_kind(FlowControl kind) noexcept {
    static constexpr const FlowKind* kKinds[] = {
#define POLLCORE_ROW(name, NAME, arrival, text) &flow_kinds::name,
        POLLCORE_FLOW_CONTROLS(POLLCORE_ROW)
#undef POLLCORE_ROW
    };
    return *kKinds[static_cast<std::size_t>(kind)];
}

}  // namespace pollcore
