// Connections over rdma_cm (rdma_cm(7)), for verbs devices.
//
// librdmacm opens a context of its own for each device (H13), so it never gets to see our QPs: it carries
// their numbers, and we make the changes of state that it describes, through ConnectingQp::modify. Whatever
// it resolves must lie on our device and port; what does not is refused with both names.
//
// The path attributes over rdma_cm:
//   timeout, retry_count, rnr_retry, min_rnr_timer   set on the own QP; the first three are also told to the
//   peer,
//                     whose plain rdma_cm program then uses them for its own QP
//   traffic_class     of the caller holds for both directions; an answer's own, unless 0, for its direction
//   max_rd_atomic, max_dest_rd_atomic   the least of this, the device's, and what the peer allows
//   mtu               both ends of a connection must have the same, and the caller's is the one. The caller's
//   must
//                     be what its port has, or 0; an answer's, unless 0, must be the caller's
//
// A receive may complete at the answering side before `established`: its QP is in RTS before the caller hears
// that it was accepted, and the caller may send as soon as it is told. If that first message comes before the caller's
// last handshake message, the device raises IBV_EVENT_COMM_EST; see communication_established().
//
// After `failed` and `disconnected` the connection is forgotten. Thread safety: as Connector says.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <rdma/rdma_cma.h>

#include "base/unique_fd.hpp"
#include "connect/connector.hpp"
#include "connect/rdma_cm_address.hpp"

namespace pollcore {

class RdmaCmConnector final : public Connector {
public:
    explicit RdmaCmConnector(Device& device);
    ~RdmaCmConnector() override;

    [[nodiscard]] ListenerId listen(const std::string& address) override;
    [[nodiscard]] std::string address_of(ListenerId listener) const override;
    void stop_listening(ListenerId listener) noexcept override;

    [[nodiscard]] ConnectionId connect(const std::string& address, ConnectingQp qp, const PathAttributes& path,
                                       std::span<const std::byte> private_data) override;
    void accept(ConnectionId request, ConnectingQp qp, const PathAttributes& path,
                std::span<const std::byte> private_data) override;
    void reject(ConnectionId request, std::span<const std::byte> private_data) override;
    void disconnect(ConnectionId connection) override;
    void forget(ConnectionId connection) noexcept override;
    void communication_established(std::uint32_t qp_num) override;
    void look_for_withdrawn_requests() override;

    [[nodiscard]] int fd() const noexcept override { return epoll_.get(); }
    [[nodiscard]] std::optional<ConnectEvent> next_event() override;

private:
    struct ChannelCloser {
        void operator()(rdma_event_channel* channel) const noexcept { rdma_destroy_event_channel(channel); }
    };
    struct IdDestroyer {
        // Waits for events of the id that were taken and not acknowledged: there are none, since next_event()
        // acknowledges each before it acts on it.
        void operator()(rdma_cm_id* id) const noexcept { (void)rdma_destroy_id(id); }
    };
    using UniqueId = std::unique_ptr<rdma_cm_id, IdDestroyer>;

    enum class State {
        resolving_address,
        resolving_route,
        connecting,
        requested,
        withdrawn,
        finding_neighbour,
        accepting,
        established
    };

    struct Connection {
        ConnectionId number = 0;
        State state{};
        UniqueId id;
        std::string peer;  ///< its address, for messages
        ConnectingQp qp;
        PathAttributes path;
        std::vector<std::byte> frame;     ///< private data as it goes out
        std::uint8_t rd_atomic = 0;       ///< agreed: ours in flight
        std::uint8_t dest_rd_atomic = 0;  ///< agreed: those we serve
        bool disconnect_called = false;
        bool answering = false;  ///< it was asked for by the peer
        UniqueId neighbour;      ///< by which the peer's neighbour entry is looked for
        // Of the caller:
        CmAddress destination;
        std::vector<std::byte> answer;  ///< the peer's private data
        FlowBlock peer_flow{};
        std::optional<Error> first_failure;   ///< of resolving the address as the routing table says
        std::vector<CmAddress> sources_left;  ///< own addresses to try after that
    };

    /// An event of librdmacm, copied out, so that it can be acknowledged before anything is done about it.
    struct CmEvent {
        rdma_cm_event_type type{};
        int status = 0;
        rdma_cm_id* id = nullptr;
        std::uint64_t number = 0;  ///< of the connection, or for a request of the listener
        std::vector<std::byte> private_data;
        std::uint8_t responder_resources = 0;
        std::uint8_t initiator_depth = 0;
    };

    // rdma_cm_connector.cc: calls from outside
    [[nodiscard]] UniqueId create_id(std::uint64_t number);
    [[nodiscard]] Connection& find_request(ConnectionId request, const char* what);
    void check_path(const PathAttributes& path);
    void check_type(const ConnectingQp& qp) const;
    void push(ConnectEvent event);
    /// "RDMA device other port 1", or empty when the id is on our device and port.
    [[nodiscard]] std::string foreign_device(const rdma_cm_id& id) const;
    [[nodiscard]] std::string own_device() const;

    // rdma_cm_steps.cc: the way of a QP to RTS. These throw what makes the connection fail.
    /// Begins it: 0, or an errno value.
    [[nodiscard]] int resolve_address(Connection& connection, CmAddress* source);
    /// Goes on with the next source, or throws the first failure.
    void address_failed(Connection& connection, Error failure);
    void address_resolved(Connection& connection);
    void send_request(Connection& connection);
    void agree_as_answerer(Connection& connection);
    /// Begins to look for it. False when the kernel needs none to move the QP.
    [[nodiscard]] bool find_neighbour(Connection& connection);
    void move_and_tell(Connection& connection);
    [[nodiscard]] rdma_conn_param conn_param(const Connection& connection) const;
    /// How the kernel would have the QP in that state, and which attributes that are.
    [[nodiscard]] std::pair<ibv_qp_attr, int> attributes_for(const Connection& connection, ibv_qp_state state) const;
    void move_to_rtr_and_rts(Connection& connection);

    // rdma_cm_events.cc
    [[nodiscard]] std::optional<CmEvent> take();
    [[nodiscard]] std::optional<ConnectEvent> handle(CmEvent& event);
    [[nodiscard]] std::optional<ConnectEvent> handle_of_connection(Connection& connection, CmEvent& event);
    [[nodiscard]] std::optional<ConnectEvent> handle_request(CmEvent& event);
    [[nodiscard]] std::optional<ConnectEvent> handle_of_listener(ListenerId listener, const CmEvent& event);
    [[nodiscard]] std::optional<ConnectEvent> handle_response(Connection& connection, const CmEvent& event);
    /// Both sides, once it is agreed what the QP shall be: finds the peer's neighbour entry, and then moves the QP and
    /// tells the peer. The event is the end of it, if it came to one.
    [[nodiscard]] std::optional<ConnectEvent> begin_moving(Connection& connection);
    [[nodiscard]] std::optional<ConnectEvent> move(Connection& connection);
    [[nodiscard]] ConnectEvent handle_rejection(Connection& connection, const CmEvent& event);
    /// The event that ends the connection, which is forgotten.
    [[nodiscard]] ConnectEvent end(Connection& connection, ConnectEvent::Kind kind, int error, std::string text);
    /// Runs a step; when it throws, the connection has failed.
    template <class Step>
    [[nodiscard]] std::optional<ConnectEvent> attempt(Connection& connection, Step&& step) {
        try {
            step();
            return std::nullopt;
        } catch (const Error& error) {
            return end(connection, ConnectEvent::Kind::failed, error.code().value(), error.what());
        } catch (const std::bad_alloc&) {
            return end(connection, ConnectEvent::Kind::failed, ENOMEM, {});
        }
    }

    Device& device_;
    std::unique_ptr<rdma_event_channel, ChannelCloser> channel_;
    UniqueFd pending_fd_;            ///< readable while pending_ holds something
    UniqueFd epoll_;                 ///< over both: what fd() gives
    std::uint64_t last_number_ = 0;  ///< of connections and listeners: one sequence, so that a number says which
    std::unordered_map<ListenerId, UniqueId> listeners_;
    std::unordered_map<ConnectionId, Connection> connections_;
    std::deque<ConnectionId>
        requests_;  ///< that wait for an answer, in the order in which they are looked at; others are dropped then
    bool moved_ = false;                ///< a QP, since this was last asked
    std::deque<ConnectEvent> pending_;  ///< events that calls made, not the kernel
};

}  // namespace pollcore
