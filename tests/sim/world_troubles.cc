// The troubles of a history, and what they excuse.
#include <algorithm>
#include <array>
#include <cerrno>
#include <optional>
#include <utility>

#include "sim/world.hpp"

namespace pollcore::sim {

Doing World::doing(const Channel& channel) const {
    const End& end = *channel.end;
    if (channel.closed || (end.excuses & (kEnding | kSessionClosing)) != 0) {
        return Doing::ending;
    }
    if (end.receive_failed ||
        std::any_of(end.lanes.begin(), end.lanes.end(), [](const Lane& lane) { return lane.failed; })) {
        return Doing::failed;
    }
    if (!channel.ready) {
        return Doing::unconnected;
    }
    return end.sends_in_flight() ? Doing::busy : Doing::idle;
}

void World::met(Trouble trouble, const Channel& channel) {
    ++coverage_[static_cast<std::size_t>(trouble)][static_cast<std::size_t>(doing(channel))];
}

Defect World::take_defect(Channel& channel) {
    const auto wanted =
        std::find_if(defects_.begin(), defects_.end(), [&](const auto& defect) { return defect.first == &channel; });
    if (wanted == defects_.end()) {
        return Defect::none;
    }
    const Defect defect = wanted->second;
    defects_.erase(wanted);
    met(defect == Defect::local_key    ? Trouble::local_key
        : defect == Defect::remote_key ? Trouble::remote_key
                                       : Trouble::too_long,
        channel);
    return defect;
}

void World::end_life(Channel& channel, std::uint32_t excuses) {
    channel.ready = false;
    if (channel.window_key != 0 && channel.window.type() == WindowType::type_2) {
        channel.ends_with_life(*channel.end, std::exchange(channel.window_key, 0));
    }
    model.excuse(*channel.end, excuses);
    if (channel.end->peer != nullptr) {
        model.excuse(*channel.end->peer, kPeerEnding);
    }
}

/// Excuses all lives of a channel whose session closes. A request that was accepted during a reset belongs to an
/// earlier life, and also ends with session_closed.
void World::closes_session(Channel& channel) {
    for (End* end : channel.lives) {
        model.excuse(*end, kSessionClosing);
    }
}

void World::closes_session(Application& application) {
    if (application.shared() != nullptr) {
        model.excuse(*application.shared()->state, kSessionClosing);
    }
}

/// Reads the window's rkey, from which the next bind's rkey is computed. A new window may have the number of an old
/// window (the rkey's upper 24 bits). The last eight bits only count binds, so old keys with this number may give
/// access again. Such keys are removed from the dead and dying keys.
void World::ask_window(Channel& channel) {
    const std::uint32_t key = channel.window.rkey();
    if (key == std::exchange(channel.next_key, key)) {
        return;
    }
    const auto may_open = [&](std::uint32_t dead) { return dead >> 8 == key >> 8; };
    for (const auto& other : channels_) {
        std::erase_if(other->dead_keys, may_open);
        std::erase_if(other->dying_keys, may_open);
    }
}

/// Excuses the present life and all later lives, because a trouble that is planned for a queue pair, or for its device,
/// may meet any of them.
void World::excuse(Channel& channel, std::uint32_t own, std::uint32_t peers) {
    channel.lasting |= own;
    if (channel.shared != nullptr) {
        model.excuse(*channel.shared->state, own & (kKept | kModifyFails));
    }
    model.excuse(*channel.end, own);
    if (channel.peer != nullptr) {
        channel.peer->lasting |= peers;
    }
    if (channel.end->peer != nullptr) {
        model.excuse(*channel.end->peer, peers);
    }
}

void World::excuse_device(const Side& side, std::uint32_t own, std::uint32_t peers) {
    for (const auto& channel : channels_) {
        if (&sides_[channel->runtime] == &side) {
            excuse(*channel, own, peers);
        }
    }
    for (const auto& shared : shared_) {
        if (&sides_[shared->runtime] == &side) {
            model.excuse(*shared->state, own & (kDeviceLost | kCqLost));
        }
    }
}

// A shared receive queue cannot be closed before its queue pairs. Closing it completes the remaining receives.
void World::end_shared(SharedReceives& shared) {
    const auto gone = [&] {
        return control_may_fail_ || (shared.state->excuses & (kSessionClosing | kDeviceLost)) != 0 ||
               sides_[shared.runtime].stopping;
    };
    const auto in_use = [&] {
        return std::any_of(channels_.begin(), channels_.end(), [&](const auto& channel) {
            return channel->shared == &shared && !channel->closed && !may_be_gone(*channel);
        });
    };
    if (in_use()) {
        bool closed = true;
        try {
            shared.queue.close();
        } catch (const Error& error) {
            closed = false;
            if (error.code().value() != EBUSY && !gone()) {
                throw Violation("control",
                                fmt::format("a shared receive queue in use is not closed: {}", error.what()));
            }
        }
        if (closed && !gone()) {
            throw Violation("control", shared.state->name + " was closed while queue pairs used it");
        }
    }
    for (const auto& channel : channels_) {
        if (channel->shared == &shared && !channel->closed) {
            end_life(*channel, kEnding);
            channel->closed = true;
            attempt(
                "closes a queue pair", [] { return false; }, [&] { (void)channel->qp.close(); });
        }
    }
    model.excuse(*shared.state, kEnding);
    shared.closed = true;
    attempt("closes a shared receive queue", gone, [&] { shared.queue.close(); });
}

// An address handle cannot be destroyed while sends in flight name it. Sends that were submitted earlier are carried
// out. Later sends may find the handle gone.
void World::renew_way(Channel& channel, std::uint32_t to) {
    AddressHandle& way = channel.ways[to];
    if (!way.valid()) {
        return;
    }
    const auto in_flight = [&] {
        return std::any_of(channel.lives.begin(), channel.lives.end(),
                           [](const End* life) { return life->sends_in_flight(); });
    };
    const bool busy = in_flight();
    const std::uint64_t submitted = channel.sends_submitted;
    channel.way_ends[to] = true;
    for (Request& request : channel.end->lanes.front().sends) {
        if (request.tag == channel.submitting) {
            request.way_ends = true;
            for (Datagram& datagram : request.to->arriving) {
                datagram.lost = datagram.lost || datagram.tag == request.tag;
            }
        }
    }
    try {
        way.destroy();
    } catch (const Error& error) {
        const bool may_be_busy =
            error.code().value() == EBUSY && (busy || in_flight() || channel.sends_submitted != submitted);
        if (!may_be_busy && !control_may_fail_ && !may_be_gone(channel)) {
            throw Violation("control",
                            fmt::format("an address handle that nobody uses is not destroyed: {}", error.what()));
        }
    }
    if (!way.valid()) {
        make_way(channel, to);
    }
    channel.way_ends[to] = false;
}

void World::arm_limit(SharedReceives& shared, Random& chance) {
    const auto gone = [&] {
        return (shared.state->excuses & (kSessionClosing | kDeviceLost)) != 0 || sides_[shared.runtime].stopping;
    };
    ++shared.limits_armed;
    attempt("arms a limit", gone, [&] { shared.queue.arm_limit(chance.between(1, shared.depth)); });
}

// A limit may be reached at most once for each time that it was armed.
void World::note_events(Side& side) {
    const std::uint64_t told = side.counters->async_events_acknowledged.value();
    if (side.stopping || std::exchange(side.events_told, told) == told) {
        return;
    }
    while (const std::optional<Event> event = side.runtime->poll_event()) {
        for (const auto& shared : shared_) {
            if (event->type == EventType::srq_limit_reached && event->srq == shared->state->handle &&
                &sides_[shared->runtime] == &side && ++shared->limits_reached > shared->limits_armed) {
                throw Violation("I9 events", shared->state->name + " has reached a limit that was not armed");
            }
        }
    }
}

void World::inject(Side& side, const Channel* channel, Trouble trouble, SoftFault fault) {
    fault.qp_num = channel != nullptr ? channel->qp_num : 0;
    side.injected.push_back({trouble, fault.kind, channel, side.device->faults_met(fault.kind)});
    side.device->inject(fault);
}

// Notes the faults of the device that have happened since the last step.
void World::note_met(Side& side) {
    std::erase_if(side.injected, [&](const Injected& injected) {
        if (side.device->faults_met(injected.kind) == injected.met_before) {
            return false;
        }
        for (const auto& channel : channels_) {
            if (injected.channel == channel.get() ||
                (injected.channel == nullptr && &sides_[channel->runtime] == &side)) {
                met(injected.trouble, *channel);
            }
        }
        return true;
    });
}

void World::reset(Channel& channel) {
    if (channel.datagram) {
        if (channel.lives.size() < Channel::kLives) {
            end_life(channel, kEnding);
            channel.ready = attempt(
                "resets a queue pair", [&] { return may_be_gone(channel); },
                [&] {
                    (void)channel.qp.reset();
                    begin_life(channel);
                });
        }
        return;
    }
    Channel& peer = *channel.peer;
    for (Channel* each : {&channel, &peer}) {
        if (each->closed || each->lives.size() == Channel::kLives || sides_[each->runtime].lost ||
            sides_[each->runtime].stopping) {
            return;
        }
    }
    bool both = true;
    for (Channel* each : {&channel, &peer}) {
        end_life(*each, kEnding);
        both = attempt(
                   "resets a queue pair", [&] { return may_be_gone(*each); },
                   [&] {
                       (void)each->qp.reset();
                       begin_life(*each);
                   }) &&
               both;
    }
    if (both) {
        connect(channel, peer);
    }
}

// Makes objects while the traffic runs, and drops them again, so that injected creation faults can happen.
void World::create_more(Side& side, Application& application) {
    const auto may_fail = [] { return true; };
    const auto try_it = [&](auto&& make) { attempt("makes something", may_fail, [&] { (void)make(); }); };
    try_it([&] { return side.runtime->create_protection_domain(); });
    try_it([&] { return side.runtime->allocate(4096, Access::all()); });
    try_it([&] {
        QueuePairOptions options;
        options.shares.push_back({.session = &application.session(), .send_depth = 40});
        options.recv_depth = 200;  // more than any CQ has room for besides the existing queue pairs
        return side.runtime->create_queue_pair(options);
    });
}

void World::cause(const Planned& planned) {
    Random chance(planned.chance);
    const Trouble trouble = planned.trouble;
    Channel& channel = *channels_[planned.where % channels_.size()];
    Side& side = side_of(channel);
    Application& application = *applications_[planned.where % applications_.size()];
    if (side.device == nullptr || side.lost || side.stopping) {
        return;
    }
    if (channel.datagram &&
        (trouble == Trouble::remote_key || trouble == Trouble::too_long || trouble == Trouble::disconnect)) {
        return;  // these troubles do not exist for UD
    }
    trace.add("trouble: {3}, for queue pair {0}", channel.index, 0, 0, trouble_name(trouble));
    constexpr std::array<int, 3> kErrors{ENOMEM, EAGAIN, EINVAL};
    SoftFault fault;
    fault.nth = chance.between(1, 12);
    fault.count = chance.between(1, 3);
    fault.error = chance.pick(kErrors);
    fault.status = static_cast<ibv_wc_status>(chance.between(1, IBV_WC_TM_RNDV_INCOMPLETE));
    fault.delay_ns = chance.between(1'000, 200'000);
    switch (trouble) {
        case Trouble::delay:
            fault.kind = SoftFault::Kind::delay_packet;
            model.packets_late = true;
            return inject(side, &channel, trouble, fault);
        case Trouble::loss:
            fault.kind = SoftFault::Kind::lose_packet;
            fault.count = 1;
            model.packets_lost = true;
            return inject(side, &channel, trouble, fault);
        case Trouble::outage:
            fault.kind = SoftFault::Kind::lose_packet;
            fault.count = 1'000'000;
            model.packets_late = true;
            excuse(channel, kLossy, kLossy);
            return inject(side, &channel, trouble, fault);
        case Trouble::port_flap: {
            excuse_device(side, kLossy, kLossy);
            for (const auto& each : channels_) {
                if (each->runtime == channel.runtime) {
                    met(trouble, *each);
                }
            }
            side.device->set_port_up(false);
            scheduler.sleep(std::uint64_t{1} << chance.between(10, 24));
            if (side.device != nullptr && !side.lost) {
                side.device->set_port_up(true);
            }
            return;
        }
        case Trouble::send_status:
        case Trouble::receive_status:
            fault.kind = trouble == Trouble::send_status ? SoftFault::Kind::send : SoftFault::Kind::receive;
            channel.end->injected.push_back(static_cast<Status>(fault.status));
            excuse(channel, kInjected, kPeerEnding);
            return inject(side, &channel, trouble, fault);
        case Trouble::refuse_send:
        case Trouble::refuse_receive:
            fault.kind = trouble == Trouble::refuse_send ? SoftFault::Kind::post_send : SoftFault::Kind::post_recv;
            excuse(channel, kPostRefused, kPeerEnding);
            return inject(side, &channel, trouble, fault);
        case Trouble::overrun:
        case Trouble::fail_poll:
            fault.kind = trouble == Trouble::overrun ? SoftFault::Kind::overrun : SoftFault::Kind::poll_cq;
            excuse_device(side, kCqLost, kPeerEnding);
            return inject(side, nullptr, trouble, fault);
        case Trouble::fail_arm:
            fault.kind = SoftFault::Kind::req_notify_cq;
            fault.nth = 1;
            return inject(side, nullptr, trouble, fault);
        case Trouble::fail_modify:
            fault.kind = SoftFault::Kind::modify;
            control_may_fail_ = true;
            excuse(channel, kModifyFails, kPeerEnding);
            return inject(side, &channel, trouble, fault);
        case Trouble::fail_destroy:
            fault.kind = SoftFault::Kind::destroy_qp;
            fault.nth = 1;
            control_may_fail_ = true;
            excuse(channel, kKept, kPeerEnding);
            return inject(side, &channel, trouble, fault);
        case Trouble::fail_create: {
            constexpr std::array<SoftFault::Kind, 4> kKinds{SoftFault::Kind::create_pd, SoftFault::Kind::create_cq,
                                                            SoftFault::Kind::create_qp,
                                                            SoftFault::Kind::register_memory};
            fault.kind = chance.pick(kKinds);
            fault.nth = 1;
            inject(side, nullptr, trouble, fault);
            return create_more(side, application);
        }
        case Trouble::device_fatal:
        case Trouble::device_removed:
            excuse_device(side, kDeviceLost, kPeerDeviceLost | kPeerEnding);
            for (const auto& each : channels_) {
                if (each->runtime == channel.runtime) {
                    met(trouble, *each);
                }
            }
            side.lost = true;
            control_may_fail_ = true;
            return trouble == Trouble::device_fatal ? side.device->fail() : side.device->remove();
        case Trouble::local_key: return void(defects_.emplace_back(&channel, Defect::local_key));
        case Trouble::remote_key: return void(defects_.emplace_back(&channel, Defect::remote_key));
        case Trouble::too_long: return void(defects_.emplace_back(&channel, Defect::too_long));
        case Trouble::reset:
            if (!channel.closed) {
                met(trouble, channel);
                reset(channel);
            }
            return;
        case Trouble::end_way:
            if (channel.datagram) {
                met(trouble, channel);
                renew_way(channel, chance.below(2));
            }
            return;
        case Trouble::end_shared:
        case Trouble::arm_limit:
            if (channel.shared != nullptr && !channel.shared->closed) {
                for (const auto& each : channels_) {
                    if (each->shared == channel.shared) {
                        met(trouble, *each);
                    }
                }
                trouble == Trouble::end_shared ? end_shared(*channel.shared) : arm_limit(*channel.shared, chance);
            }
            return;
        case Trouble::disconnect:
            if (!channel.closed) {
                met(trouble, channel);
                end_life(channel, kEnding);
                attempt(
                    "disconnects", [&] { return may_be_gone(channel); }, [&] { channel.qp.disconnect(); });
            }
            return;
        case Trouble::close_qp:
            if (!channel.closed) {
                met(trouble, channel);
                end_life(channel, kEnding);
                channel.closed = true;
                attempt(
                    "closes a queue pair", [] { return false; }, [&] { (void)channel.qp.close(); });
            }
            return;
        case Trouble::close_session:
            for (const auto& each : channels_) {
                if (application.uses(*each)) {
                    met(trouble, *each);
                    end_life(*each, kEnding);
                    closes_session(*each);
                }
            }
            closes_session(application);
            return application.close_session();
        case Trouble::stop_runtime:
            side.stopping = true;
            for (const auto& each : channels_) {
                if (each->runtime == channel.runtime) {
                    met(trouble, *each);
                    end_life(*each, kEnding);
                    closes_session(*each);
                }
            }
            for (std::size_t i = 0; i < applications_.size(); ++i) {
                if (i / 2 == channel.runtime) {
                    closes_session(*applications_[i]);
                }
            }
            side.device = nullptr;
            return void(side.runtime->stop());
        case Trouble::stop_polling:
            for (const auto& each : channels_) {
                if (application.uses(*each)) {
                    met(trouble, *each);
                }
            }
            return application.stop_polling(scheduler.steps() + chance.between(50, 800));
    }
}

}  // namespace pollcore::sim
