// The context of an opened device: `struct ibv_context` with this library's functions behind the inline verbs.
//
// Thread safety: any thread.
#pragma once

#include <cstddef>
#include <deque>
#include <mutex>
#include <vector>

#include "plain_verbs.hpp"
#include "served_objects.hpp"

namespace pollcore::served {

struct Opened {
    verbs_context verbs{};
    Device* device = nullptr;
    Attachment* attachment = nullptr;    ///< that it was opened by
    std::deque<ibv_async_event> events;  ///< guarded by objects_mutex(); verbs.context.async_fd counts them
};
static_assert(offsetof(Opened, verbs) == 0);

/// Whether this library has made the context, and in this process: in a child of fork(2) no context is.
[[nodiscard]] bool is_ours(const ibv_context* context) noexcept;
[[nodiscard]] Opened& of(ibv_context* context) noexcept;
/// Throws Error(EPERM) in a child of fork(2) if the parent has made the context.
void require_own_process(const ibv_context* context);

/// Guards the lists of contexts and their events, and the life of objects against events that name them.
[[nodiscard]] std::mutex& objects_mutex() noexcept;

/// Tells the contexts of the objects' end: events that name them and were not taken are dropped. Called under
/// objects_mutex().
void drop_events_of(Opened& opened, const void* element) noexcept;

/// The completion queues of this process, for events that name a worker. Guarded by objects_mutex().
[[nodiscard]] std::vector<Cq*>& all_cqs() noexcept;
[[nodiscard]] std::vector<Srq*>& all_srqs() noexcept;

/// Fills in the inline verbs. After that, is_ours() holds.
void install(verbs_context& verbs) noexcept;
/// In a child of fork(2): from then on the inline verbs fail with EPERM.
void uninstall(verbs_context& verbs) noexcept;

}  // namespace pollcore::served
