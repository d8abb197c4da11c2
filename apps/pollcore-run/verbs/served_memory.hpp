// Inline verbs about protection domains.
//
// Thread safety: any thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "plain_verbs.hpp"

namespace pollcore::served {

ibv_td* alloc_td(ibv_context* context, ibv_td_init_attr* init) noexcept;
int dealloc_td(ibv_td* td) noexcept;
ibv_pd* alloc_parent_domain(ibv_context* context, ibv_parent_domain_init_attr* init) noexcept;

/// ibv_init_ah_from_wc(3) for a device of this library. Returns 0, or -1 with errno.
[[nodiscard]] int way_back(ibv_context& context, std::uint8_t port_num, const ibv_wc& wc, const ibv_grh& grh,
                           ibv_ah_attr& attr) noexcept;

}  // namespace pollcore::served
