// Inline verbs about devices and ports.
//
// Thread safety: any thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "plain_verbs.hpp"

namespace pollcore::served {

int query_port(ibv_context* context, std::uint8_t port_num, ibv_port_attr* attr, std::size_t size) noexcept;
int query_device_ex(ibv_context* context, const ibv_query_device_ex_input* input, ibv_device_attr_ex* attr,
                    std::size_t size) noexcept;
int query_rt_values(ibv_context* context, ibv_values_ex* values) noexcept;

}  // namespace pollcore::served
